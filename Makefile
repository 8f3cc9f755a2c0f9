# Two commands, each does all its own set-up. Everything else is `cargo x`.
.PHONY: help demo test

help:
	@echo 'make demo   a RAID 5 array on tmpfs loses a member under running programs'
	@echo 'make test   formatting, lints, unit and property tests, unmodified programs, bench sanity'
	@echo 'cargo x     everything else: fmt, lint, tidy, build, bench, man'

demo:
	@check/setup demo
	@PATH="$$PATH:$$HOME/.cargo/bin" cargo x demo

test:
	@check/setup test
	@PATH="$$PATH:$$HOME/.cargo/bin" cargo x test
