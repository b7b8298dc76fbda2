package pgstore

// NewDatabase returns the URL of a database for one test.
func NewDatabase() string { return ownDatabase(shared()) }
