"""Memory arithmetic: model shapes and budgets to bytes, blocks and concurrency."""
