"""Print what a wheel requires, without the torch family: that comes from elsewhere."""

import re
import sys
import zipfile

TORCH_FAMILY = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")


def main() -> None:
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = wheel.read(name).decode()
    for line in metadata.splitlines():
        field, _, requirement = line.partition(": ")
        if field == "Requires-Dist" and "extra ==" not in requirement and not TORCH_FAMILY.match(requirement):
            print(requirement)


if __name__ == "__main__":
    main()
