package store

import "context"

// factSample is how many devices are looked at, the first by their ids: the cost
// of a look is that of reading so many, however many there are.
const factSample = 1000

// DevicesWithTag says how many devices were looked at, and whether one of them has a
// tag of this name.
func (s devices) DevicesWithTag(ctx context.Context, name string) (looked int, found bool, err error) {
	return s.lookAt(ctx, "tags", "{keys of tags}", name, name)
}

// DevicesWithAttribute is DevicesWithTag for what devices say of themselves, by
// its name, or by the first one of a path.
func (s devices) DevicesWithAttribute(ctx context.Context, path, first string) (looked int, found bool, err error) {
	return s.lookAt(ctx, "attributes", "{keys of attributes}", path, first)
}

func (s devices) lookAt(ctx context.Context, column, keys, name, or string) (looked int, found bool, err error) {
	err = s.read().rowOf(ctx, `
		SELECT count(*), count(CASE WHEN EXISTS (SELECT 1 FROM `+keys+` WHERE k.key = $1 OR k.key = $2) THEN 1 END) > 0
		FROM (SELECT `+column+` FROM devices ORDER BY id LIMIT $3) AS looked`, []any{name, or, factSample}, &looked, &found)
	return looked, found, err
}
