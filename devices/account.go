package devices

// Account is one of a device at a broker that keeps a list of its own.
type Account struct {
	Device   ID
	Password string
	Enabled  bool // it may open sessions
}
