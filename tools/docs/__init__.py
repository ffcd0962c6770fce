"""The documentation site: `python -m tools.docs` builds it, and ends with 1 if anything is wrong.

Sphinx reads the pages where they lie, at the root and in docs/, so that each link in them works on
GitHub and on the site alike. Three things are added here: the order of the pages, which is that of
the lists in docs/index.md (`pages`); a reference of every public name (`api`); and a look at all
links of what was built (`links`). Tables that follow from the code are written into the pages by
`tables`.
"""
