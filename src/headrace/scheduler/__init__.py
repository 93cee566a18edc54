"""Every decision inside one replica: whom to admit, what a step computes, which KV blocks hold it."""
