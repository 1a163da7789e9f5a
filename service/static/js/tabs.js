// Tabs whose name is in the URL fragment. Arrow keys, Home and End move between them.

import { h } from "./dom.js";

export class Tabs {
  // `parts`: name -> [title, elements]. `changed(name)` is called when a tab is shown; `select` returns its result.
  constructor(id, parts, changed) {
    this.names = Object.keys(parts);
    this.changed = changed;
    const hrefOf = (name) => `#/models/${encodeURIComponent(id)}${name === this.names[0] ? "" : `/${name}`}`;
    this.tabs = this.names.map((name) =>
      h("a", { role: "tab", id: `tab-${name}`, href: hrefOf(name), "aria-controls": `panel-${name}` }, parts[name][0]));
    this.panels = this.names.map((name) =>
      h("div", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}` }, parts[name][1]));
    this.element = h("div", {},
      h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the model", onkeydown: (event) => this.move(event) }, this.tabs),
      this.panels);
  }

  get shown() {
    return this.names[this.panels.findIndex((panel) => !panel.hidden)];
  }

  select(name) {
    const at = Math.max(0, this.names.indexOf(name));
    this.tabs.forEach((tab, k) => {
      tab.setAttribute("aria-selected", String(k === at));
      tab.setAttribute("tabindex", k === at ? "0" : "-1");
      this.panels[k].hidden = k !== at;
    });
    // On a phone the tabs are wider than the screen.
    const [list, tab] = [this.element.firstChild, this.tabs[at]];
    list.scrollLeft = tab.offsetLeft - (list.clientWidth - tab.offsetWidth) / 2;
    return this.changed(this.names[at]);
  }

  move(event) {
    const at = this.tabs.indexOf(event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: this.tabs.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const tab = this.tabs.at(to % this.tabs.length);
    location.hash = tab.getAttribute("href");
    tab.focus();
  }
}
