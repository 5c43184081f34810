module idem

go 1.19
