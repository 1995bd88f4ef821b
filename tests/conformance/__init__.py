"""One suite for every store. A store is done when it passes; `stores.py` is where one is added."""
