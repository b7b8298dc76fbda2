// Package browser has the tests of the page for operators in Chromium.
package browser
