"""The console in a browser: `console` has its pages, `site` turns values into pages, `pictures` draws numbers, and
`strip` a history."""
