// Package sqllock has the tools that a team with a SQL database reaches for when two
// of its processes meet: locks that the database has already, and what is commonly
// built with them by hand.
package sqllock
