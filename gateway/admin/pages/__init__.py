"""The console in a browser: `console` has its pages, `pictures` draws numbers and histories."""
