"""The durable record of many gateways.

`store` is the store, `dialer` owns the driver, `link` is one connection. Commands go through `batch`, `statements` and
`rows`; `witness` is what a copy of the database lacks. `schema`, `upkeep`, `inquiry` and `news` do the rest.
"""
