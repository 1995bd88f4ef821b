-- no row of the table: suspended sinks in their order
SELECT service, sink, why FROM suspension WHERE (service, sink) > (?, ?) ORDER BY service, sink LIMIT ?
