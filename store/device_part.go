package store

import "context"

// DevicesWith looks at so many of the devices that match, by id, for those with this in their
// ids, as Silent does. Upper and lower case are the same.
func (s devices) DevicesWith(ctx context.Context, f DeviceFilter, part string, looked int) (Silence, error) {
	return s.sift(ctx, f, like("id", "%s"), containing(part), looked)
}
