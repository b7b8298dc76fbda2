// Package history is what workers did and were told, written down so that it can be
// checked. A line is on its way to the file before the call that it tells of leaves, so
// that what a killed process did is known too: it was called, and nobody heard the answer.
package history
