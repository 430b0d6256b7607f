"""What is published: `make release` writes it into dist/, `make test-wheel` tries the wheel on clean systems."""
