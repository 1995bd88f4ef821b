-- no row of the table: check a content again later
UPDATE content SET check_us = ? WHERE digest = ? AND id = ?
