module github.com/dibs-go/dibs

go 1.26
