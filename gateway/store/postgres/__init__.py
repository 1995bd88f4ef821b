"""The durable record of many gateways.

`store` is the store, `dialer` owns the driver and what is behind it, `connection` is one connection. Commands go
through `batch`, and those that are not hot through `change`; `rows` are records, `statements` the texts of the SQL.
`schema`, `upkeep`, `inquiry` and `news` do the rest.
"""
