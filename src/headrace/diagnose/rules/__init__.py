"""What a finding follows from: small functions of evidence, by mechanism."""
