// Package survey lists the live keys of a store: which are held, who waits for them, and which
// outcomes are unknown. The metrics and the operator's page read one survey.
package survey
