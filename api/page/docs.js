"use strict";

let token = null; // in memory alone
const at = (id) => document.getElementById(id);

function withToken(request) {
  if (token !== null) request.headers.authorization = `Bearer ${token}`;
  return request;
}

async function open() {
  const response = await fetch("openapi.json", withToken({ headers: {} }));
  at("login").hidden = response.status !== 401;
  if (response.status === 401) {
    at("login-problem").textContent = token === null ? "" : "The server does not accept this token.";
    token = null;
    at("token").focus();
  } else {
    SwaggerUIBundle({ spec: await response.json(), domNode: at("docs"), requestInterceptor: withToken });
  }
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  at("token").value = "";
  open();
});
open();
