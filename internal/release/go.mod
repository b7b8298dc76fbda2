module github.com/dibs-go/dibs/internal/release

go 1.26.0

require (
	github.com/dibs-go/dibs v0.0.0
	golang.org/x/mod v0.42.0
)

require (
	golang.org/x/sync v0.23.0 // indirect
	golang.org/x/tools v0.51.0
)

replace github.com/dibs-go/dibs => ../../
