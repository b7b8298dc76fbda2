module github.com/dibs-go/dibs/stores/redisstore

go 1.26.0

require (
	github.com/dibs-go/dibs v0.0.0
	github.com/redis/rueidis v1.0.79
)

require golang.org/x/sys v0.47.0 // indirect

replace github.com/dibs-go/dibs => ../../
