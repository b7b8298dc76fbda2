module github.com/dibs-go/dibs/cmd/dibs-prove

go 1.26.0

require (
	github.com/dibs-go/dibs v0.0.0
	github.com/dibs-go/dibs/proof v0.0.0
	github.com/dibs-go/dibs/stores/anystore v0.0.0
	github.com/dibs-go/dibs/stores/sqlitestore v0.0.0
)

require (
	github.com/klauspost/cpuid/v2 v2.4.0 // indirect
	github.com/minio/md5-simd v1.1.2 // indirect
	github.com/minio/minio-go/v7 v7.4.1 // indirect
	golang.org/x/net v0.62.0 // indirect
	gopkg.in/ini.v1 v1.67.3 // indirect
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/dibs-go/dibs/stores/casstore/s3 v0.0.0 // indirect
	github.com/dibs-go/dibs/stores/mysqlstore v0.0.0 // indirect
	github.com/dibs-go/dibs/stores/pgstore v0.0.0 // indirect
	github.com/dibs-go/dibs/stores/redisstore v0.0.0 // indirect
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/go-sql-driver/mysql v1.10.1 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.12.0 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	modernc.org/libc v1.79.0 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
	modernc.org/sqlite v1.61.1 // indirect
)

replace github.com/dibs-go/dibs => ../../

replace github.com/dibs-go/dibs/stores/mysqlstore => ../../stores/mysqlstore

replace github.com/dibs-go/dibs/stores/pgstore => ../../stores/pgstore

replace github.com/dibs-go/dibs/proof => ../../proof

replace github.com/dibs-go/dibs/stores/redisstore => ../../stores/redisstore

replace github.com/dibs-go/dibs/stores/sqlitestore => ../../stores/sqlitestore

replace github.com/dibs-go/dibs/stores/anystore => ../../stores/anystore

replace github.com/dibs-go/dibs/sqllock => ../../sqllock

replace github.com/dibs-go/dibs/jobs/riverjobs => ../../jobs/riverjobs

replace github.com/dibs-go/dibs/jobs/asynqjobs => ../../jobs/asynqjobs

replace github.com/dibs-go/dibs/dibsotel => ../../dibsotel

replace github.com/dibs-go/dibs/stores/casstore/s3 => ../../stores/casstore/s3

replace github.com/dibs-go/dibs/stores/casstore/etcd => ../../stores/casstore/etcd
