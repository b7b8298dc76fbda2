// Package mysqlstore keeps leases.
package mysqlstore
