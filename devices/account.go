package devices

// Account is a device's account at a broker that keeps its own list of accounts: mosquitto, through package dynsec.
type Account struct {
	Device   ID
	Password string
	Enabled  bool // The account may open sessions.
}
