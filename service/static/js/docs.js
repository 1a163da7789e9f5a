// The API as openapi.json describes it, to read and to try.

/* global SwaggerUIBundle */
SwaggerUIBundle({ url: "openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null });
