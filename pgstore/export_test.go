package pgstore

// NewDatabase returns the URL of a database that nobody else uses.
func NewDatabase() string { return ownDatabase(shared()) }
