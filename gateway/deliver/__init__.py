"""Delivers accepted requests: the worker of one gateway process.

`worker` finds what is due and delivers it, each as an operation of `protect.operation`. `places` bounds how many it
delivers at once, for each route and, by a breaker, for each upstream.
"""
