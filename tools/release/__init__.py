"""The published files: `make release` writes them to dist/, `make test-wheel` tries the wheel on clean systems."""
