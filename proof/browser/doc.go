// Package browser has the tests of the page for operators in Chromium. They live through the nights
// of docs/operate/three-nights.md with real programs, and make the screenshots of the documentation.
package browser
