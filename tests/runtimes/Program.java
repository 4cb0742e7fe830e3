public class Program {
    static native int pairs(int count);

    public static void main(String[] arguments) {
        System.load(arguments[0]);
        System.out.println("answered " + pairs(40));
        System.exit(7);
    }
}
