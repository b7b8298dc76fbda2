// Package history writes down what workers asked a store and what it answered, so that it can
// be checked. A line is written before its call leaves, so that the calls of a killed process
// are known too: they have no answer.
package history
