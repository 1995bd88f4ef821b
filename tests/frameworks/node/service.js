// The service of tests/frameworks/services.py in frameworks of Node.js: node service.js MODULES NAME PORT
const { createRequire } = require("node:module");
const [modules, name, port] = process.argv.slice(2);
const load = createRequire(modules + "/");

if (name === "express") {
  const app = load("express")();
  app.post("/v1/payments", (request, response) => response.set("X-Handled", "payments").json({}));
  app.listen(Number(port), "127.0.0.1");
} else {
  const routerOptions = {
    caseSensitive: false, ignoreTrailingSlash: true, ignoreDuplicateSlashes: true, useSemicolonDelimiter: true,
  };
  const app = load("fastify")({ routerOptions });
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("*", (request, body, done) => { body.resume(); body.on("end", () => done(null, null)); });
  app.post("/v1/payments", (request, reply) => reply.header("X-Handled", "payments").send({}));
  app.listen({ port: Number(port), host: "127.0.0.1" });
}
