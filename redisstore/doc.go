// Package redisstore keeps leases, queues and records on Redis.
package redisstore
