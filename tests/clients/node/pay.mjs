// Buys with Stripe's own library: node pay.mjs PORT KIND API_KEY IDEMPOTENCY_KEY PARAMETERS. Prints what its user gets.
import Stripe from "stripe";

const [port, kind, apiKey, idempotencyKey, parameters] = process.argv.slice(2);
const stripe = new Stripe(apiKey, { host: "127.0.0.1", port, protocol: "http", maxNetworkRetries: 4 });
let bought;
try {
  const made = await stripe[kind].create(JSON.parse(parameters), { idempotencyKey });
  bought = { id: made.id, object: made.object, status: made.status };
} catch (error) {
  bought = { raised: error.type.replace("Stripe", ""), message: error.message };
}
// The library leaves the body of a response unread after which it tries again, and that connection open.
process.stdout.write(`${JSON.stringify(bought)}\n`, () => process.exit());
