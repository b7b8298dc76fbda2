package mysqlstore

type clocks struct{}
