package store

import "context"

// keySearchLimit is the maximum number of devices in which DevicesWithTag and DevicesWithAttribute search for a name. They search the
// devices with the lowest ids. So the cost of a search does not grow with the number of devices.
const keySearchLimit = 1000

// DevicesWithTag searches at most keySearchLimit devices for a tag with this name. It returns the number of searched devices, and whether
// one of them has the tag. Warnings about policies use it. To find the devices with a tag, use Devices with DeviceFilter.Tags.
func (s devices) DevicesWithTag(ctx context.Context, name string) (searched int, found bool, err error) {
	return s.searchKeys(ctx, "tags", "{keys of tags}", name, name)
}

// DevicesWithAttribute searches at most keySearchLimit devices for an attribute with the name path or the name firstName. It returns the
// number of searched devices, and whether one of them has such an attribute. path is a list of names joined with dots; firstName is the
// first name of path.
func (s devices) DevicesWithAttribute(ctx context.Context, path, firstName string) (searched int, found bool, err error) {
	return s.searchKeys(ctx, "attributes", "{keys of attributes}", path, firstName)
}

// searchKeys searches the first keySearchLimit devices for a key that equals name or altName. column is tags or attributes, and the keys
// are those of the JSON object in this column. keysWord is the word in braces (see dialect) that selects these keys. searchKeys returns the
// number of searched devices and whether one of them has such a key.
func (s devices) searchKeys(ctx context.Context, column, keysWord, name, altName string) (searched int, found bool, err error) {
	err = s.readSession().scanRow(ctx, []any{&searched, &found}, `
		SELECT count(*), count(CASE WHEN EXISTS (SELECT 1 FROM `+keysWord+` WHERE k.key = $1 OR k.key = $2) THEN 1 END) > 0
		FROM (SELECT `+column+` FROM devices ORDER BY id LIMIT $3) AS looked`, name, altName, keySearchLimit)
	return searched, found, err
}
