"""Delivers accepted requests: the worker of one gateway process.

`worker` finds what is due and delivers it, each as an operation of `protect.operation`. It bounds how many at once.

Entered by worker.DeliveryWorker.
Imports core, observe, protect, store, upkeep, upstream.
"""
