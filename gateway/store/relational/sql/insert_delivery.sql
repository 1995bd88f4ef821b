-- absent | released --accept--> accepted: what is known of the kept request
INSERT INTO delivery {delivery inserted}
