// The API's documentation, from its OpenAPI document.

import { get } from "./api.js";
import { element } from "./charts.js";

const { paths, components } = await get("/openapi.json");
document.getElementById("paths").replaceChildren(
  ...Object.entries(paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => section(path, method, operation)),
  ),
);

function section(path, method, operation) {
  const parts = [element("h2", {}, element("code", { textContent: `${method.toUpperCase()} ${path}` }))];
  parts.push(element("p", { textContent: operation.summary }));
  if (operation.description) parts.push(element("p", { className: "faint", textContent: operation.description }));
  parts.push(...list("Parameters", (operation.parameters ?? []).map(parameter)));
  const bodies = Object.entries(operation.requestBody?.content ?? {});
  parts.push(...list("Body", bodies.map(([type, { schema }]) => [type, words(schema)])));
  const responses = Object.entries(operation.responses).map(([status, { description, content }]) => {
    const schema = status === "200" ? resolved(Object.values(content)[0].schema) : {};
    return [status, schema.properties ? `${description} ${words(schema)}` : description];
  });
  parts.push(...list("Responses", responses));
  return element("section", {}, ...parts);
}

function parameter({ name, schema, description }) {
  const choices = schema.enum ? ` One of ${schema.enum.join(", ")}.` : "";
  return [name, `${description}${choices}`];
}

function list(title, entries) {
  if (!entries.length) return [];
  const items = entries.flatMap(([name, text]) => [
    element("dt", {}, element("code", { textContent: name })),
    element("dd", { textContent: text }),
  ]);
  return [element("h3", { textContent: title }), element("dl", {}, ...items)];
}

function resolved(schema) {
  const one = schema.anyOf?.[0] ?? schema;
  return one.$ref ? components.schemas[one.$ref.split("/").at(-1)] : one;
}

function words(described) {
  const schema = resolved(described);
  if (schema.properties) {
    return `{${Object.entries(schema.properties).map(([name, part]) => `${name}: ${words(part)}`).join(", ")}}`;
  }
  if (schema.type === "array") return `[${words(schema.items)}, …]`;
  return { binary: "bytes of a picture", byte: "base64" }[schema.format] ?? schema.type ?? "any";
}
