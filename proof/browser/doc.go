// Package browser has the tests of the page for operators in Chromium. They live through the nights
// of docs/operate/page.md with real programs, and make the screenshots of the documentation.
package browser
