module github.com/dibs-go/dibs/cmd/dibs

go 1.26.0

require (
	github.com/dibs-go/dibs v0.0.0
	github.com/dibs-go/dibs/sqlitestore v0.0.0
)

require (
	github.com/goccy/go-yaml v1.19.2 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/cobra v1.10.2 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
)

replace github.com/dibs-go/dibs => ../../

replace github.com/dibs-go/dibs/sqlitestore => ../../sqlitestore
