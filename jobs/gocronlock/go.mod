module github.com/dibs-go/dibs/jobs/gocronlock

go 1.26.0

require (
	github.com/dibs-go/dibs v0.0.0
	github.com/dibs-go/dibs/stores/redisstore v0.0.0
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/google/uuid v1.6.0
	github.com/jonboulle/clockwork v0.5.0
)

require (
	github.com/redis/rueidis v1.0.79 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace (
	github.com/dibs-go/dibs => ../../
	github.com/dibs-go/dibs/stores/redisstore => ../../stores/redisstore
)
