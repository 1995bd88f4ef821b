"""What the gateway costs beside a plain proxy: `python -m tests.benchmarks`, measured side by side in one run."""
