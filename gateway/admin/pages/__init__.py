"""The console: pages for people under `/ui/` of the admin port, over the same operations as its API.

`console` is all of it: signing in, what fails, and the parts. `site` turns values into pages and serves the stylesheet
and the script. `reading` has the pages that show something, `changing` those that change something.

Pages are forms and links that work without the script. Their templates escape what they are given.
"""
