"use strict";
// What the pages of host and peer share: elements by id, and numbers and times as people say them.

const el = id => document.getElementById(id);
const big = n => n == null ? "" : n >= 1e9 ? (n / 1e9).toFixed(2) + " G" : n >= 1e6 ? (n / 1e6).toFixed(2) + " M"
  : n >= 1e3 ? (n / 1e3).toFixed(1) + " k" : n.toFixed(0);
const inBytes = n => n == null ? "" : big(n) + (n < 1e3 ? " B" : "B");
const several = (count, thing) => `${count} ${thing}${count === 1 ? "" : "s"}`;
const span = s => s == null ? "unknown" : s >= 129600 ? (s / 86400).toFixed(1) + " days" : s >= 5400 ? (s / 3600).toFixed(1) + " h"
  : s >= 90 ? (s / 60).toFixed(0) + " min" : Math.max(0, s).toFixed(0) + " s";
