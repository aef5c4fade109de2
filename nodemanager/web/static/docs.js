// Shows the description of the HTTP API as a page.
const made = (name, className, text) => Object.assign(document.createElement(name), { className, textContent: text });

document.documentElement.dataset.theme = localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

const described = await (await fetch("/openapi.json")).json();
const holder = document.getElementById("operations");
for (const [path, methods] of Object.entries(described.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const card = made("article", "card", "");
    const head = made("p", "", "");
    head.append(made("span", "verb", method.toUpperCase()), made("code", "", path), operation.security ? made("span", "pill", "token") : "");
    card.append(head, made("p", "note", operation.summary));
    for (const parameter of operation.parameters) card.append(made("p", "note", `${parameter.name} (${parameter.in}): ${parameter.description}`));
    const statuses = Object.entries(operation.responses).map(([status, response]) => `${status} ${response.description.toLowerCase()}`);
    card.append(made("p", "note", statuses.join(" · ")));
    holder.append(card);
  }
}
